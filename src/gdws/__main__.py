"""python -m gdws"""

from gdws.cli import main

main()
