"""What makes the site: pages generated from the code, notebooks as pages, and figures that the pages' own code draws.

make docs        builds the site in build/docs
make notebooks   runs the notebooks and writes their outputs into them
make figures     runs the code of the pages and writes the figures it draws into docs/images
"""
