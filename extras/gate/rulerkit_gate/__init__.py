"""The gate, a plug-in of rulerkit: is a candidate worse than a baseline? Brings `rulerkit gate`.

`command` reads what was typed and shows the result, `rounds` asks, `sequential` decides when enough
was asked, and says what was found.
"""

commands = "rulerkit_gate.command:app"
