"""How many workers of which kind a load needs: an estimate by formula, and the fleet simulation that checks it."""
