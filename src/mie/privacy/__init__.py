"""What may leave this machine: one gate for judges, remote editors and public exports, with one log."""

from __future__ import annotations

from mie.privacy.gate import Finding, Gate, Policy, PrivacyError

__all__ = ["Finding", "Gate", "Policy", "PrivacyError"]
