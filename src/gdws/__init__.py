from gdws.decompose import Factors, lego, mego

__all__ = ["Factors", "lego", "mego"]
