"""Figure 1: solution paths of the toy example under four penalties."""

from fedfuse.paper.experiment import Item
from fedfuse.paper.lambdas import Paths

ITEM = Item(
    name="figure1",
    title="solution paths of the toy example under four penalties",
    where="Figure 1",
    experiment=Paths(),
    why=("The noise of the example is not printed; it was chosen so that SCAD has the two groups from about 0.4 on.",),
)
