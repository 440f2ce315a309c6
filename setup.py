"""Packaging entry point; the metadata stands in pyproject.toml. Nothing is compiled."""

from setuptools import setup

setup()
