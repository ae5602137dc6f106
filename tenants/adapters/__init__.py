"""An adapter version's way from upload to `ready`, or to `rejected` with the reasons.

`receiving` (with `guard` in front and `archives` beside it) takes the files in, `store` keeps them,
`checks` (over `config` and `safetensors_header`) judges them without executing anything, `probe`
has an engine try them, `jobs` runs the last two in the background, `files` hands the files to
engine agents.
"""
