"""Everything between an upload and a version that is `ready`, or `rejected` with the reasons.

The console only receives bytes and hands them over (`uploads`: `guard` and `reservations` in front,
then `receiving` or `intake` with `parts`, then `handover`). Everything else is a background job
(`jobs`): `checks` reads the upload in child processes limited by `sandbox`; `uploads.keeping` turns
it into a version, within the tenant's `quota`, and `store` stores its files; `checks` validates
them without executing anything; `probe` has an engine try them, `trials` on each revision that they
are to run on. Versions of training loops (`short_lived`) are checked and not probed. `files` serves
the files to engine agents.
"""
