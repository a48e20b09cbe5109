"""The models on disk: what there is, and every way to get, change and remove one.

$DRIVETRAIN_HOME/models/<id>/{model.json, *.gguf}     the files are links into blobs/; a *.jns may be beside them
                 blobs/sha256-…                       content, each piece once
                 engines/<name>/engine.json           defaults of an engine
"""

from drivetrain.library.library import Broken, Library
from drivetrain.library.pulls import Unfinished
from drivetrain.library.settings import Layer, Setting
from drivetrain.library.status import Status

__all__ = ["Broken", "Layer", "Library", "Setting", "Status", "Unfinished"]
