"""Plans as the files that training systems start from; what a file cannot say is refused."""
