"""What `drivetrain migrate` decides: which model becomes which, what stands against it, and the rollouts of it."""
