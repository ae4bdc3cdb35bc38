"""Policies as ONNX files and torch programs, with a manifest.

Serving is in `serving`, loading in `policies.loading`.
"""
