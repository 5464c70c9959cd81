"""From a trained policy to rewards and win rates."""
