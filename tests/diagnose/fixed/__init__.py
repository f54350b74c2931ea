"""Tests of ddpcheck/diagnose/fixed."""
