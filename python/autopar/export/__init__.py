"""What other systems start a job with, written; an exporter says a plan exactly or refuses it."""
