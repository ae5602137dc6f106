"""Fine-tuning: workers read the files of a job, trainers train it in a child process, and the
result becomes an adapter like any other."""
