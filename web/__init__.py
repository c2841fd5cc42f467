"""The door: lets pushes in and believes only their token.

Imports workers and delegation, is imported by neither, and never imports a2a: a push body is not applied here.
"""

from web.app import create_app

__all__ = ["create_app"]
