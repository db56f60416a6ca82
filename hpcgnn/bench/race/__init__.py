"""`hpcgnn bench time-to-score` races trainings to a validation score: contestants, their trials, and what is shown."""
