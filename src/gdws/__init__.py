from gdws.decompose import Factors, lego, mego
from gdws.sensitivity import sensitivity

__all__ = ["Factors", "lego", "mego", "sensitivity"]
