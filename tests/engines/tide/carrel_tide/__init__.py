"""An engine for Carrel whose jobs start at high water: a toy that shows what an engine is."""
