"""How often splits roll back falsely, and how soon rightly: simulated."""
