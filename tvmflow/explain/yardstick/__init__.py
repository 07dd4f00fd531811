"""Times of another engine on phones, as a yardstick for the layers of a network."""
