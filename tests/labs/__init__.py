"""Laboratories: long, random or foreign. Each has a target of the Makefile; `make test` runs each
for one short round."""
