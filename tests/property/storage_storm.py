"""A storm of requests, endings and accidents over the storage's world, from one seed.

Hypothesis finds small cases; this one goes deep: hundreds of steps with several runs under way at any moment.
"""

from __future__ import annotations

from random import Random

from tests.unit.services.storage.world import World

IDS = ("x", "y", "z")
HOWS = ("", "", "", "", "", "lost", "unheard", "fail")


class Storm:
    """`world` after any number of `blow`s; `calm` ends everything and checks what must hold then."""

    def __init__(self, seed: int) -> None:
        self._dice = Random(seed)
        self.world = World(disk_on=self._dice.random() < 0.75, files={"/p": "red", "/q": "blue"})
        self._asks = (
            *[self._put] * 3,
            *[self._attach] * 8,
            self._register,
            *[self._durable] * 2,
        )
        self._accidents = (
            self._owner,
            self._hang_up,
            self._hang_up,
            self._change,
            self._map,
            self.world.see_pool,
            lambda: self.world.wait(self._dice.choice((1, 60, 400, 2_500))),
        )

    def blow(self) -> None:
        roll = self._dice.random()
        if roll < 0.25:
            self._dice.choice(self._asks)()
        elif roll < 0.85:
            self._end()
        elif roll < 0.98:
            self._dice.choice(self._accidents)()
        elif roll < 0.997:
            self.world.settle()
        else:
            self.world.wait(130_000)

    def calm(self) -> None:
        world = self.world
        world.settle()
        world.wait(1_000_000)
        world.settle()
        while world.events:
            world.hear()
        world.settle()
        world.check_quiet()
        assert not world.kept and world.let_gone == set(range(1, world.sources + 1))

    def _id(self) -> str:
        return self._dice.choice(IDS)

    def _budget(self) -> int:
        return self._dice.choice((50, 500, 5_000, 200_000))

    def _put(self) -> None:
        dice, world = self._dice, self.world
        path = dice.choice(("", "", "/p", "/q"))
        digest = world.files.get(path) or dice.choice(("red", "blue"))
        art_id, base = dice.choice((*IDS, "more-1", "more-2", "more-3")), dice.choice(("", "", "", *IDS))
        durable = dice.random() < 0.3
        base = "" if base == art_id else base
        world.put(art_id, digest, path=path, budget_ms=self._budget(), durable=durable, base=base)

    def _attach(self) -> None:
        how = self._dice.choice(("whole", "whole", "view", "view", "manifest"))
        self.world.attach(self._id(), budget_ms=self._budget(), how=how)

    def _durable(self) -> None:
        self.world.durable(self._id(), budget_ms=self._budget())

    def _register(self) -> None:
        dice = self._dice
        eager = dice.random() < 0.3
        digest = dice.choice(("", "", "green" if eager else "pending:1"))
        ttl_ms = dice.choice((300, 20_000, 500_000))
        content = dice.choice(("red", "blue"))
        self.world.register(self._id(), content, digest=digest, ttl_ms=ttl_ms, budget_ms=self._budget(), eager=eager)

    def _end(self) -> None:
        dice, world = self._dice, self.world
        how = dice.choice(HOWS)
        if world.fills and (not world.pending or dice.random() < 0.3):
            world.end_fill(dice.choice(sorted(world.fills)), how="fail" if how == "fail" else "")
        elif world.pending:
            # Mostly in order, as things are; sometimes not.
            world.end(0 if dice.random() < 0.6 else dice.randrange(len(world.pending)), how=how)

    def _hang_up(self) -> None:
        if self.world.open_requests():
            self.world.hang_up(self._dice.choice(sorted(self.world.open_requests())))

    def _owner(self) -> None:
        dice, world = self._dice, self.world
        if not world.kept:
            return
        source = dice.choice(sorted(world.kept))
        kept = world.kept[source]
        match dice.choice(("renew", "release", "die", "change", "late")):
            case "renew":
                world.renew(kept.art_id, source, ttl_ms=1_000)
            case "release":
                world.release(kept.art_id, source)
            case "change":
                kept.content = "green"
            case "late":
                world.renew(kept.art_id, dice.randrange(1, world.sources + 1))
            case _:
                world.die(source)

    def _change(self) -> None:
        dice, world = self._dice, self.world
        art_id = self._id()
        match dice.randrange(8):
            case 0:
                world.put_elsewhere(art_id, dice.choice(("red", "blue")))
            case 1:
                world.delete_elsewhere(art_id)
            case 2:
                world.delete(art_id, budget_ms=self._budget())
            case 3 if art_id in world.disk:
                world.disk[art_id] = "flipped"
            case 4:
                world.files[dice.choice(("/p", "/q"))] = dice.choice(("red", "blue", "green"))
            case 5:
                world.files.pop("/p", None)
            case _ if world.events:
                world.hear()

    def _map(self) -> None:
        if self.world.published:
            here = self.world.published[self._dice.choice(sorted(self.world.published))]
            here.pins = self._dice.choice((0, 0, 1))
