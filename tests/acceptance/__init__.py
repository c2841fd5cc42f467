"""Every process of the product."""
