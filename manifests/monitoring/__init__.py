"""Dashboards and alert rules, described once in Python; `make gen` writes the files of the chart."""
