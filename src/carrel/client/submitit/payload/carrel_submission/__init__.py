"""What runs in a job of `carrel.submitit`: standard library only, in the user's environment."""
