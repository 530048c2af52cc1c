"""Margins, simplices and packings on the sphere; torch only (scipy where it is used)."""
