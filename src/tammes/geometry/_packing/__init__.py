"""The search behind `pack`: codes known by construction, starts made from them, descent and polish."""
