"""Measuring the ceilings of OpenVINO's CPU plugin."""
