"""Running servers: what they say of themselves, a load on them, and whether a prediction holds (`specsim check`)."""
