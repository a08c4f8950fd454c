"""The torch runner. Before PyTorch is loaded, its idle threads are told to sleep instead of spinning.

The event loop and other programs want the same cores: on two cores that were shared with other work, a step took
several times as long with spinning threads. A value that the user has set stays.
"""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
