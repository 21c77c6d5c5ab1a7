"""MedEBench: context preservation from pixels; editing accuracy and visual quality from a judge."""
