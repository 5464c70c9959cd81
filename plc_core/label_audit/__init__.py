"""Which labels are wrong, how many, and what speaks against each: evidence read out of fold.

The room knows `data` and, for hidden states alone, `engine`. `audit` joins it: `evidence` gathers
columns (`probe` reads hidden states, `words` the texts), `posterior` adds them up and turns them
into probabilities, `reasons` says them.
"""

from plc_core.label_audit.audit import Audit, audit, evidence_table
from plc_core.label_audit.cleaning import POLICIES
from plc_core.label_audit.evidence import EVIDENCE

__all__ = ["EVIDENCE", "POLICIES", "Audit", "audit", "evidence_table"]
