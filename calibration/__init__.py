"""The calibration harness: measured runs from the user's own hardware, in the form that specsim reads.

Imports point one way: it may use specsim, and specsim never uses it. torch is imported where it is used.
"""
