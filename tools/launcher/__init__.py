"""`manage.py up`: runs the programs of one machine, starts them again, and ends with all of them."""
