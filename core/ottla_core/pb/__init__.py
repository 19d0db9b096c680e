"""Generated from proto/ by `make gen`; not edited by hand."""
