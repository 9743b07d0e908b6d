"""Carries out calls of functions for a pool of a Carrel lab."""
