"""`hpcgnn bench time-to-score` races trainings to a validation score: contestants, their trials, and results."""
