"""Why another way was judged faster than ours, case by case; a case without a loss has no line."""

COMBINED = (
    "XLA's GPU compiler combines small gathers and sums into few large ones, which the cost model "
    "does not know: it prices each with a latency and the rate of its own size"
)
CAUSES: dict[str, str] = {
    "gpt_b32_h100": f"{COMBINED}. FSDP's 39 gathers became 16 and its 19 reduce-scatters 2, bytes "
    "as predicted: 8.7 ms of links predicted, 5.1 compiled; our plan's 4.7 and 3.6.",
    "moe_h100": f"{COMBINED}: FSDP + EP is predicted at 9.1 ms of links and compiled to 6.9. Its "
    "21 gathers over both axes became 5, its 10 reduce-scatters 2. What is exposed is too high, "
    "4.3 ms predicted and 2.7 replayed, and too low for our plan, 1.8 and 2.6.",
    "decode": "1.7 ms predicted, 15.6 judged. The compiler copies each layer's part of the stacked "
    "cache out and back, in tiles of 2 rows because our plan leaves 2 of 8 key/value heads on a "
    "device. auto_sharding splits the cache by examples alone; that its tiles are therefore full "
    "is likely, but its program was not read. Copies and tiles of a cache are not in the model.",
    "decode_h100": "Of our 2.19 ms 0.34 are the judge's: its roofline of GPU instructions lets a "
    "lookup of 32 rows read the whole table, which our plan does not split and DP + TP does.",
}
