"""An adapter version's way from upload to `ready`, or to `rejected` with the reasons.

The process that serves takes bytes (`uploads`: `receiving`, `intake` with `parts`, and `guard` in
front) and hands them over (`handover`). All else are background jobs (`jobs`): `checks` reads what
arrived, in child processes that `sandbox` limits, and `uploads.keeping` makes it a version, whose
files `store` keeps; `checks` judges these without executing anything; `probe` has an engine try
them. `files` hands the files to engine agents.
"""
