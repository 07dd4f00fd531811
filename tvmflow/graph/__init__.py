"""Graph passes on Relax: simplification before layouts, fusion after them."""
