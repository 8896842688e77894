"""The profiles of the examples, as an operator would change them for this site, or for what is to be looked at."""

from pathlib import Path
from typing import Any

from rackwright.profiles import profile_from_yaml, profile_to_yaml

__all__ = ["Profile", "example"]

EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "profiles"


class Profile:
    """One that can be changed before it is stored."""

    def __init__(self, text: str) -> None:
        content = profile_from_yaml(text)
        assert isinstance(content, dict)
        self._content: dict[str, Any] = content

    @property
    def steps(self) -> list[dict[str, Any]]:
        steps: list[dict[str, Any]] = self._content["steps"]
        return steps

    def step(self, name: str) -> dict[str, Any]:
        """By its id, or by what it uses."""
        return next(step for step in self.steps if name in (step.get("id"), step["use"]))

    def change(self, name: str, **arguments: object) -> "Profile":
        """Other arguments of a step."""
        step = self.step(name)
        step["with"] = {**step.get("with", {}), **arguments}
        return self

    def without(self, name: str) -> "Profile":
        self.steps.remove(self.step(name))
        return self

    def after(self, name: str, **step: Any) -> "Profile":
        """One step more."""
        self.steps.insert(self.steps.index(self.step(name)) + 1, step)
        return self

    def script(self, name: str, ident: str, script: str) -> "Profile":
        """A script on the machine after a step, in the ramdisk."""
        return self.after(name, id=ident, use="task.run", on="ramdisk", **{"with": {"script": script}})

    def named(self, name: str) -> "Profile":
        self._content["profile"] = name
        return self

    def for_bios(self) -> "Profile":
        """A BIOS has no boot entries, and is asked for no other mode."""
        for step in list(self.steps):
            if step["use"] == "metal.bootRamdisk":
                step["with"].pop("mode", None)
            if step["use"] == "deploy.setBootEntry":
                self.steps.remove(step)
        return self

    def by_ipmi(self) -> "Profile":
        """A BMC that speaks IPMI alone: no virtual media, so the machine starts over the network."""
        drivers = self._content["drivers"]
        drivers.update({name: "ipmi" for name in ("power", "boot", "management") if name in drivers})
        kept = ("power.", "management.", "metal.", "inspect.", "deploy.", "task.")
        self._content["steps"] = [step for step in self.for_bios().steps if step["use"].startswith(kept)]
        self._content["drivers"] = {name: value for name, value in drivers.items() if value != "redfish"}
        return self.change("boot-ramdisk", method="pxe")

    def store(self, folder: Path) -> Path:
        file = folder / f"{self._content['profile']}.yaml"
        file.write_text(profile_to_yaml(self._content))
        return file


def example(name: str) -> Profile:
    return Profile((EXAMPLES / f"{name}.yaml").read_text())
