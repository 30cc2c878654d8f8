"""The files of named data sets: where they can be had, and the checksums by which they are known."""

from __future__ import annotations

from dataclasses import dataclass

IMAGES, LABELS = "images-idx3-ubyte.gz", "labels-idx1-ubyte.gz"


@dataclass(frozen=True)
class FileSpec:
    """A file of a data set.

    Attributes
    ----------
    file
        Its place below the data directory; mirrors have it under its last name.
    sha256
        Of what mirrors send.
    also
        Checksums of other copies that are as good, where one is there already.
    """

    file: str
    sha256: str
    also: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The file's name without its folder."""
        return self.file.rpartition("/")[2]

    @property
    def accepted(self) -> tuple[str, ...]:
        """All checksums that a file already there may have."""
        return (self.sha256, *self.also)


@dataclass(frozen=True)
class Collection:
    """The files of a data set, and the mirrors (addresses that end in /) that are tried in turn."""

    files: tuple[FileSpec, ...]
    mirrors: tuple[str, ...] = ()


COLLECTIONS: dict[str, Collection] = {
    # `also`: the same images and labels, packed by another gzip
    "mnist": Collection(
        (
            FileSpec(
                f"mnist/train-{IMAGES}",
                "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
                ("0b367032e93c5d0cea0925647cfdb18614af8ee15f83e6f2fc2ad904a6835971",),
            ),
            FileSpec(
                f"mnist/train-{LABELS}",
                "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
                ("1787548bbe0bff1ec2ecdc0ef292b02df999e2d1a6002d27500982c652b17203",),
            ),
            FileSpec(
                f"mnist/t10k-{IMAGES}",
                "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
                ("1a1a05eab793c14bb050b398624a11b0ffd1a2953baed553b1b9bd079e2a20be",),
            ),
            FileSpec(
                f"mnist/t10k-{LABELS}",
                "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
                ("b91679a0acfe4ba0e50a2437a903084cba1f5f92592b016a25a7dfd00455798b",),
            ),
        ),
        ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/"),
    ),
    # `also`: all 70,000 images in another stratified split
    "fashion-mnist": Collection(
        (
            FileSpec(
                f"fashion-mnist/train-{IMAGES}",
                "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
                ("c76353bd679da070dcaddee8c8c0e277b149281a1de3df8030c687694fad5be4",),
            ),
            FileSpec(
                f"fashion-mnist/train-{LABELS}",
                "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
            ),
            FileSpec(
                f"fashion-mnist/t10k-{IMAGES}",
                "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
                ("52f5d53f8e160594d0d4a3d5da6ad460bc6edce201b862ca35279c74118562f5",),
            ),
            FileSpec(
                f"fashion-mnist/t10k-{LABELS}",
                "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
            ),
        ),
        (
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
            "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
        ),
    ),
    # no mirror has these tables in this form
    "housing-bodyfat": Collection(
        (
            FileSpec("tabular/housing.csv", "de34377a9f15b743089e8ff434fc6792f668c7e7c0219fb13c5b8aa6cd7b7cb2"),
            FileSpec("tabular/bodyfat.csv", "2bb020cc52d6ce86e82d71f0c0d197cfd22763a9223cf26ae7a7d63a540c9085"),
        )
    ),
}
