"""Random programs: sensible ones, clumsy ones and hostile ones, from a seed."""

from __future__ import annotations

from random import Random

TRICKS = (
    "import os; os.system('id')",
    "import subprocess, socket",
    "open('/etc/passwd').read()",
    "__import__('os').popen('id')",
    "().__class__.__base__.__subclasses__()",
    "(lambda: 0).__globals__['__builtins__']",
    "eval('pay(to=\"x\", amount=1)')",
    "exec('pay(to=1, amount=[])')",
    "getattr(pay, '__code__')",
    "pay.__wrapped__(1)",
    "globals()['pay']('x', 'y')",
    "x = 10 ** 10 ** 8",
    "x = 'a' * 10 ** 12",
    "x = [0] * 10 ** 10",
    "while True: pass",
    "while True: print('flood' * 1000)",
    "def down(n): return down(n + 1)\ndown(0)",
    "while True:\n    try: import nothing\n    except BaseException: pass",
    "import time; time.sleep(1000)",
    "import datetime; datetime.datetime.now()",
    "import random; random.random()",
    "import asyncio\nasync def f(): return pay('x', 1)\nasyncio.run(f())",
    "await pay(to='x', amount=1)",
    "def g(): yield pay('x', 1)\nlist(g())",
    "class Evil(str):\n    def __eq__(self, o): return True\npay(Evil('x'), 1)",
    "pay = lambda *a, **k: 'shadowed'",
    "def lookup(*a): return 10",
    "raise SystemExit(0)",
    "raise KeyboardInterrupt",
    "raise MemoryError('limit exceeded')",
    "quit()",
    "print('\\ud800')",
    "x = []\nx.append(x)\npay(x, x)",
    "x = []\nx.append(x)\nx",
    "x = []\nfor _ in range(10000): x = [x]\nx",
    "pay(**{'to': 'x', 'amount': 1, 'admin': True})",
    "sorted([1, 2], key=lambda n: lookup(n))",
    "del pay",
    "return pay",
    "pay",
    "{1, 2}",
    "b'bytes'",
    "float('nan')",
    "10 ** 30",
    "\0",
    "x ==== 1",
    "assert pay('x', 1) == 2, 'no'",
)
VALUES = (
    "'ann'", "''", "1", "-5", "0", "2.5", "10 ** 20", "10 ** 40", "True", "None", "[]", "[1, 'a']", "{}", "{'a': 1}", "{1: 2}", "{1, 2}", "b'x'",
    "float('inf')", "'x' * 5000", "(1, 2)", "lookup", "x", "found", "'\\x00'", "'<secret:0123456789abcdef01234567>'", "lambda: 1",
)  # fmt: skip
NAMES = ("to", "amount", "key", "note", "admin", "self", "TO")


def call(random: Random) -> str:
    """Return a call, which may be right."""
    if random.random() < 0.4:
        return random.choice(
            ("pay(to='ann', amount=3)", "pay('bob', 4)", "lookup('k')", "lookup(key='ann')", "pay(to=lookup('k'), amount=len('abc'))")
        )
    args = [random.choice(VALUES) for _ in range(random.randrange(3))]
    args += [f"{name}={random.choice(VALUES)}" for name in random.sample(NAMES, random.randrange(3))]
    return f"{random.choice(('pay', 'lookup', 'pay', 'x', 'nothing', 'print'))}({', '.join(args)})"


def statement(random: Random, depth: int = 0) -> list[str]:
    """Return the lines of a statement."""
    kind = random.randrange(9 if depth < 2 else 4)
    inside = [f"    {line}" for line in statement(random, depth + 1)] if kind > 3 else []
    match kind:
        case 0:
            return [f"x = {call(random)}"]
        case 1:
            return [f"print({call(random)}, {random.choice(VALUES)})"]
        case 2:
            return random.choice(TRICKS).split("\n") if depth == 0 else [f"found.append({random.choice(VALUES)})"]
        case 3:
            return [f"found = [{call(random)} for _ in range({random.randrange(3)})]"]
        case 4:
            return [f"for i in range({random.randrange(4)}):", *inside]
        case 5:
            return [
                "try:",
                *inside,
                f"except {random.choice(('RuntimeError', 'BaseException', 'Exception', 'TypeError'))} as error:",
                "    print(error)",
            ]
        case 6:
            return [f"if {random.choice(VALUES)}:", *inside, "else:", f"    x = {call(random)}"]
        case 7:
            return ["def f(n):", *inside, "    return n", "f(1)"]
        case _:
            return ["try:", *inside, "finally:", f"    {call(random)}"]


def program(seed: int) -> str:
    """Return a program."""
    random = Random(seed)
    lines = ["x = 0", "found = []"]
    for _ in range(random.randrange(1, 6)):
        lines += statement(random)
    return "\n".join([*lines, random.choice(("x", "found", "None", "[x, found]", call(random)))])
