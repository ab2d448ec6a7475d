"""The question wordings of every problem family, and the words that fill them.

The last `HELD_OUT_WORDINGS` wordings of a family never occur in training. They use only words the training
wordings use, so they test whether a model understood a question rather than whether it knows the words.
"""

from __future__ import annotations

HELD_OUT_WORDINGS = 2


def _pool(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def _wordings(text: str) -> dict[str, tuple[str, ...]]:
    """Reads `[family]` headings, each followed by its wordings: a dash, then one or more lines."""
    wordings: dict[str, tuple[str, ...]] = {}
    for section in text.split("[")[1:]:
        family, _, body = section.partition("]")
        wordings[family] = tuple(" ".join(wording.split()) for wording in body.split("\n- ")[1:])
    return wordings


NAMES = _pool("""
    Anna Ben Clara David Emma Felix Grace Henry Ida Jack Kate Leo Mia Noah Olga Paul Rosa Sam Tina Victor
    Alice Boris Cora Daniel Ella Frank Gina Hugo Iris Jonas Karl Lena Max Nina Oscar Petra Robin Sara Tom
    Zoe
""")

# Regular plurals only: the singular is the word without its last letter.
THINGS = _pool("""
    apples pears plums lemons melons carrots onions nuts eggs cakes cookies rolls books pens pencils cards
    stamps stickers coins marbles beads buttons shells stones balls kites dolls toys boats hats cups
    plates bottles spoons candles flowers roses magnets tickets lamps
""")

LEGS = {
    "cats": 4, "dogs": 4, "goats": 4, "cows": 4, "horses": 4, "pigs": 4,
    "hens": 2, "ducks": 2, "birds": 2, "crows": 2,
    "bugs": 6, "bees": 6, "beetles": 6,
    "spiders": 8, "crabs": 8,
}  # fmt: skip

WORDINGS = _wordings("""
[buy_more]
- {name} has {a} {things}. Then {name} buys {b} more {things}. How many {things} does {name} have now?
- {name} had {a} {things} and bought {b} more. How many {things} does {name} have in all?
- There are {a} {things} in the bag of {name}. At the shop {name} gets {b} more {things}. How many {things}
  are there now?
- {name} buys {b} {things}. Before that, {name} already had {a} {things}. How many {things} does {name} have
  in total?
- How many {things} does {name} have in all after buying {b} more, if {name} had {a} {things} before?
- In the morning {name} has {a} {things}. In the afternoon {name} buys {b} more {things}. What is the total
  number of {things}?
- {name} owns {a} {things}. Then {name} gets {b} more {things}. How many {things} does {name} own now?
- After buying {b} {things}, {name} counts them all. {name} already had {a} {things}. How many {things} are
  there in total?
- {name} gets {b} {things} today. {name} had {a} {things} before. How many {things} are there in all?
- In the evening {name} buys {b} {things}. In the morning {name} had {a} {things}. How many {things} does
  {name} own now?
- {b} {things} are put into a bag of {a} {things}. How many {things} are in the bag of {name} now?
- {name} finds {b} more {things}. Before that, there were {a} {things} in the bag of {name}. How many
  {things} are there now?
- With {a} {things} in the bag, {name} goes to the shop and gets {b} more. What is the total number of
  {things}?
- {name} already had {a} {things}. Then {name} buys {b} more at the shop. How many {things} does {name} own
  in total?
- In the afternoon {name} gets {b} {things}. Before that, {name} had {a} {things}. How many {things} does
  {name} have now?

[give_away]
- {name} has {a} {things}. Then {name} gives {b} {things} to {other}. How many {things} does {name} have
  left?
- {name} had {a} {things} and gave away {b} of them. How many {things} are left?
- There are {a} {things} in the bag of {name}. {other} takes {b} of them. How many {things} are left in the
  bag?
- {name} gives {b} {things} to {other}. Before that, {name} had {a} {things}. How many {things} does {name}
  still have?
- How many {things} does {name} still have after giving away {b}, if {name} had {a} {things} before?
- In the morning {name} has {a} {things}. During the day {name} loses {b} of them. How many {things} does
  {name} have in the evening?
- {name} owns {a} {things} and sells {b} of them to {other}. How many {things} remain?
- After giving {b} {things} to {other}, {name} counts the rest. {name} had {a} {things} before. How many
  {things} remain?
- {other} gets {b} {things} from {name}. {name} had {a} {things} before. How many {things} does {name} still
  have?
- {name} loses {b} {things}. In the morning {name} had {a} {things}. How many {things} remain?
- {b} of the {a} {things} of {name} are given to {other}. How many {things} are left?
- In the evening {name} sells {b} {things}. Before that, there were {a} {things}. How many {things} does
  {name} have left?
- With {a} {things} in the bag, {name} goes to {other} and gives away {b} of them. How many {things} does
  {name} still have?
- {name} had {a} {things}. During the day {name} gives {b} of them to {other}. How many {things} does {name}
  still have?
- {name} sells {b} {things} to {other}. Before that, {name} had {a} {things}. How many {things} are left?

[boxes]
- {name} has {b} boxes. Each box holds {a} {things}. How many {things} does {name} have?
- There are {a} {things} in each box. {name} has {b} boxes. How many {things} are there in total?
- {name} fills {b} boxes with {a} {things} each. How many {things} are in the boxes?
- How many {things} are in {b} boxes if there are {a} {things} in each box?
- A shop sells boxes of {a} {things}. {name} buys {b} boxes. How many {things} does {name} get?
- {name} puts {a} {things} into each box and fills {b} boxes. What is the total number of {things} in the
  boxes?
- {b} boxes stand in the room of {name}. Every box holds {a} {things}. How many {things} are there in all?
- Every box holds {a} {things}. How many {things} are there in {b} boxes?
- {a} {things} are in every box. There are {b} boxes in the shop of {name}. How many {things} are there?
- {name} counts {b} boxes and finds {a} {things} in each. How many {things} are there in all?
- Each of the {b} boxes of {name} holds {a} {things}. What is the total number of {things}?
- A box holds {a} {things}. How many {things} does {name} get with {b} boxes?
- There are {b} boxes in the bag of {name}, and each box holds {a} {things}. How many {things} does {name}
  have?
- {name} buys {b} boxes. There are {a} {things} in each box. How many {things} does {name} get?
- A shop sells boxes and every box holds {a} {things}. {name} has {b} boxes. How many {things} are there in
  total?

[price]
- {name} buys {a} {things} for {p} dollars each and {b} {others} for {q} dollars each. How many dollars does
  {name} pay?
- One {thing} costs {p} dollars and one {another} costs {q} dollars. {name} buys {a} {things} and {b}
  {others}. What is the total price?
- A shop sells {things} for {p} dollars each and {others} for {q} dollars each. {name} buys {a} {things} and
  {b} {others}. How much does {name} pay in total?
- {name} wants {a} {things} and {b} {others}. Each {thing} costs {p} dollars and each {another} costs {q}
  dollars. How much do they cost in total?
- How much do {a} {things} and {b} {others} cost, if one {thing} costs {p} dollars and one {another} costs
  {q} dollars?
- {name} pays {p} dollars for each {thing} and {q} dollars for each {another}. How many dollars do {a}
  {things} and {b} {others} cost?
- At the shop {name} gets {a} {things} at {p} dollars each. Then {name} gets {b} {others} at {q} dollars
  each. What is the total price?
- Each {thing} costs {p} dollars and {name} buys {a} of them. Each {another} costs {q} dollars and {name}
  buys {b} of them. How much does {name} pay?
- {name} buys {a} {things} and {b} {others}. One {thing} costs {p} dollars and one {another} costs {q}
  dollars. How much does {name} pay?
- For {p} dollars each {name} gets {a} {things}, and for {q} dollars each {b} {others}. How much do they
  cost in total?
- A {thing} costs {p} dollars. A {another} costs {q} dollars. How many dollars does {name} pay for {a}
  {things} and {b} {others}?
- First {name} buys {a} {things}. Each costs {p} dollars. After that {name} buys {b} {others} at {q} dollars
  each. What is the total price?
- How many dollars does {name} pay for {a} {things} at {p} dollars each and {b} {others} at {q} dollars
  each?
- At the shop {name} buys {a} {things} for {p} dollars each and {b} {others} for {q} dollars each. How much
  do they cost in total?
- Each {thing} costs {p} dollars and each {another} costs {q} dollars. {name} wants {a} {things} and {b}
  {others}. How many dollars does {name} pay?

[change]
- {name} buys {a} {things} for {p} dollars each and gives the shop {c} dollars. How much change does {name}
  get?
- One {thing} costs {p} dollars. {name} buys {a} {things} and pays with {c} dollars. How many dollars of
  change does {name} get back?
- {name} pays with {c} dollars for {a} {things}. Each {thing} costs {p} dollars. How much change does {name}
  get?
- {name} has {c} dollars and buys {a} {things} at {p} dollars each. How many dollars are left?
- How much change does {name} get from {c} dollars after buying {a} {things} for {p} dollars each?
- A shop sells {things} for {p} dollars each. {name} has {c} dollars and buys {a} {things}. How many dollars
  does {name} still have?
- With {c} dollars {name} goes to the shop. There {name} buys {a} {things} for {p} dollars each. How many
  dollars does {name} have left?
- Each {thing} costs {p} dollars and {name} buys {a} of them. {name} gives the shop {c} dollars. How many
  dollars does {name} get back?
- In the bag {name} has {c} dollars. Each {thing} costs {p} dollars. How many dollars are left after buying
  {a} {things}?
- {name} had {c} dollars before. Then {name} buys {a} {things} for {p} dollars each. How many dollars
  remain?
- {name} has {c} dollars. One {thing} costs {p} dollars, and {name} wants {a} of them. How many dollars does
  {name} still have?
- There are {c} dollars in the bag. {name} gets {a} {things} at {p} dollars each. How many dollars are left?
- Each {thing} costs {p} dollars. With {c} dollars {name} pays for {a} {things}. How many dollars does
  {name} get back?
- {name} has {c} dollars. Each {thing} costs {p} dollars and {name} buys {a} of them. How many dollars are
  left?
- {name} buys {a} {things} at {p} dollars each and pays with {c} dollars. How many dollars of change does
  {name} get?

[share]
- {name} has {a} {things} and {other} has {b} {things}. They share all of them equally among {n} friends.
  How many {things} does each friend get?
- {name} brings {a} {things} and {other} brings {b} {things}. {n} friends share them equally. How many
  {things} does each friend get?
- {n} friends share the {things} of {name} and {other} equally. {name} has {a} {things} and {other} has {b}
  {things}. How many {things} does every friend get?
- How many {things} does each friend get, if {n} friends equally share the {a} {things} of {name} and the
  {b} {things} of {other}?
- {name} picks {a} {things}. {other} picks {b} {things}. They put them together and share them equally among
  {n} friends. How many does each friend get?
- {a} {things} of {name} and {b} {things} of {other} are put together. Then {n} friends share them all
  equally. How many {things} are there for each friend?
- {name} finds {a} {things} and {other} finds {b} {things}. All of them are shared equally among {n}
  friends. How many {things} are there for every friend?
- Among {n} friends, {name} and {other} share all their {things} equally. {name} had {a} {things} and
  {other} had {b} {things}. How many does each friend get?
- {name} counts {a} {things}. {other} counts {b} {things}. Among {n} friends all of them are shared equally.
  How many {things} does each friend get?
- {n} friends put together {a} {things} from {name} and {b} {things} from {other} and share them equally.
  How many does every friend get?
- There are {n} friends. {name} has {a} {things} and {other} has {b} {things}. All are shared equally. How
  many {things} are there for each friend?
- {other} finds {b} {things} and {name} finds {a} {things}. They share them equally among {n} friends. How
  many does each friend get?
- In the bag of {name} are {a} {things}, and in the bag of {other} are {b} {things}. {n} friends share them
  equally. How many {things} does each friend get?
- {name} picks {a} {things} and {other} picks {b} {things}. {n} friends share all of them equally. How many
  {things} are there for each friend?
- {name} brings {a} {things} and {other} finds {b} {things}. They put them together and share them equally
  among {n} friends. How many {things} does every friend get?

[gain_and_lose]
- {name} has {a} {things}, buys {b} more and then gives {c} {things} to {other}. How many {things} does
  {name} have now?
- {name} had {a} {things}. First {name} bought {b} more. Then {name} gave away {c}. How many {things} are
  left?
- There are {a} {things} in the bag of {name}. {name} puts in {b} more, and {other} takes {c} out. How many
  {things} are in the bag now?
- In the morning {name} has {a} {things}. Then {name} gets {b} more and loses {c}. How many {things} does
  {name} have in the evening?
- How many {things} does {name} have after buying {b} more and giving away {c}, if {name} had {a} {things}
  before?
- {name} owns {a} {things}. At the shop {name} gets {b} more. Later {name} sells {c} of them to {other}. How
  many {things} remain?
- {name} finds {b} {things} and then loses {c}. Before that, {name} already had {a} {things}. How many
  {things} does {name} have now?
- A bag holds {a} {things}. {name} puts {b} more into the bag. Later {other} takes {c} of them. How many
  {things} are left in the bag?
- {name} loses {c} {things} after getting {b} more. In the morning {name} had {a} {things}. How many
  {things} remain?
- First {name} has {a} {things}. Then {name} finds {b} more. In the evening {other} takes {c} of them. How
  many {things} does {name} still have?
- {name} buys {b} {things} and gives {c} {things} to {other}. Before that, there were {a} {things}. How many
  {things} are there now?
- With {a} {things} in the bag, {name} gets {b} more and sells {c} to {other}. How many {things} are left?
- Today {name} has {a} {things}. {other} gives {b} more to {name} and then takes {c} out. How many {things}
  are there now?
- {name} had {a} {things}. Then {name} gets {b} more. Later {name} gives {c} of them to {other}. How many
  {things} remain?
- In the morning {name} has {a} {things}. First {name} buys {b} more. Then {name} loses {c} of them. How
  many {things} are left?

[difference]
- {name} has {a} {things} and {other} has {b} {things}. How many more {things} does {name} have than
  {other}?
- {other} has {b} {things}. {name} has {a} {things}. How many more {things} does {name} have?
- {name} owns {a} {things}, but {other} owns only {b}. What is the difference?
- How many more {things} does {name} have than {other}, if {name} has {a} and {other} has {b}?
- {name} counts {a} {things} and {other} counts {b} {things}. How many fewer {things} does {other} have?
- {other} has only {b} {things}, and {name} has {a} {things}. How many fewer {things} does {other} have than
  {name}?
- {name} picks {a} {things}. {other} picks only {b} {things}. What is the difference between the two
  numbers?
- There are {a} {things} in the bag of {name} and {b} {things} in the bag of {other}. How many more {things}
  are in the bag of {name}?
- {other} counts only {b} {things}, and {name} counts {a}. What is the difference?
- {other} has {b} {things}, but {name} has {a} {things}. What is the difference between the two numbers?
- There are only {b} {things} in the bag of {other}, but {a} {things} in the bag of {name}. How many more
  {things} are in the bag of {name}?
- {other} finds {b} {things}. {name} finds {a} {things}. How many fewer {things} does {other} have than
  {name}?
- If {other} owns {b} {things} and {name} owns {a} {things}, how many more {things} does {name} have?
- {name} picks {a} {things} and {other} picks {b} {things}. How many more {things} does {name} have than
  {other}?
- {other} owns only {b} {things}, but {name} owns {a} {things}. What is the difference between the two
  numbers?

[times_as_many]
- {name} has {a} {things}. {other} has {k} times as many {things} as {name}. How many {things} do they have
  together?
- {other} has {k} times as many {things} as {name}. {name} has {a} {things}. How many {things} do they have
  in all?
- {name} picks {a} {things} and {other} picks {k} times as many. How many {things} do they pick together?
- How many {things} do {name} and {other} have together, if {name} has {a} {things} and {other} has {k}
  times as many?
- {name} finds {a} {things}. {other} finds {k} times as many as {name}. What is the total number of
  {things}?
- {name} owns {a} {things}, but {other} owns {k} times as many. What is the total number of their {things}?
- There are {a} {things} in the bag of {name} and {k} times as many in the bag of {other}. How many {things}
  are in the two bags together?
- {name} counts {a} {things}. {other} counts {k} times as many {things}. How many {things} do they have in
  total?
- {other} counts {k} times as many {things} as {name}. {name} counts {a} {things}. How many {things} are
  there together?
- There are {k} times as many {things} in the bag of {other} as in the bag of {name}. {name} has {a}
  {things}. How many {things} do they have in total?
- {other} finds {k} times as many {things} as {name}, and {name} finds {a} {things}. What is the total
  number of {things}?
- How many {things} do they have together, if {other} owns {k} times as many {things} as {name} and {name}
  owns {a}?
- If {other} buys {k} times as many {things} as {name}, and {name} buys {a} {things}, how many {things} do
  they have in all?
- {name} owns {a} {things}. {other} owns {k} times as many {things} as {name}. How many {things} do they
  have in total?
- {other} picks {k} times as many {things} as {name}. {name} picks {a} {things}. How many {things} do they
  have together?

[distance]
- {name} rides {a} miles every hour for {h} hours and then walks {b} miles. How many miles does {name}
  travel?
- {name} travels by bus for {h} hours at {a} miles an hour. After that {name} walks {b} miles. How far does
  {name} go in total?
- For {h} hours {name} rides a bike at {a} miles an hour. Then {name} walks {b} more miles. What is the
  total distance in miles?
- How far does {name} go in all, if {name} rides {a} miles every hour for {h} hours and walks {b} miles?
- {name} walks {b} miles. Then {name} rides a bike for {h} hours at {a} miles an hour. How many miles does
  {name} go in all?
- A bus goes {a} miles every hour. {name} takes the bus for {h} hours and then walks {b} miles. How many
  miles is that in total?
- First {name} walks {b} miles. After that {name} takes a bus for {h} hours at {a} miles an hour. How far
  does {name} travel?
- {name} goes {a} miles an hour by bike. After {h} hours, {name} walks {b} miles more. What is the total
  distance in miles?
- First {name} walks {b} miles. Then {name} travels by bus for {h} hours at {a} miles an hour. How many
  miles is that in total?
- {name} walks {b} miles and then rides {a} miles every hour for {h} hours. How far does {name} go in all?
- After {b} miles by foot, {name} rides a bike at {a} miles an hour for {h} hours. What is the total
  distance in miles?
- In the morning {name} walks {b} miles. Then {name} goes {a} miles every hour for {h} hours. How far does
  {name} travel?
- First {name} rides {a} miles every hour for {h} hours. Then {name} walks {b} miles. How many miles does
  {name} travel?
- {name} rides a bike for {h} hours at {a} miles an hour and then walks {b} miles. How far does {name} go in
  total?
- First {name} walks {b} miles. Then {name} rides {a} miles every hour for {h} hours. What is the total
  distance in miles?

[savings]
- {name} wants a toy that costs {c} dollars. {name} has {b} dollars and saves {p} dollars every week. How
  many weeks does it take?
- {name} has {b} dollars and needs {c} dollars for a lamp. Each week {name} saves {p} dollars. After how
  many weeks can {name} buy it?
- A bike costs {c} dollars. {name} already has {b} dollars. How many weeks does {name} need, saving {p}
  dollars each week?
- Every week {name} saves {p} dollars. {name} already has {b} dollars and wants {c} dollars. How many weeks
  does {name} have to save?
- How many weeks does {name} need to get {c} dollars, if {name} has {b} dollars and saves {p} dollars a
  week?
- {name} saves {p} dollars a week for a bike. It costs {c} dollars, and {name} has {b} dollars now. How many
  weeks does it take?
- With {b} dollars in the bag, {name} starts to save {p} dollars every week. After how many weeks does
  {name} have {c} dollars?
- {name} needs {c} dollars for a toy. In the bag there are {b} dollars, and each week {name} puts in {p}
  dollars more. How many weeks does {name} need?
- A toy costs {c} dollars. {name} has {b} dollars and saves {p} dollars a week. How many weeks does it take?
- A lamp costs {c} dollars, and {name} already has {b} dollars. Every week {name} puts in {p} dollars more.
  After how many weeks can {name} buy it?
- {name} has {b} dollars now and saves {p} dollars each week for a bike. The bike costs {c} dollars. How
  many weeks does {name} have to save?
- {name} wants a lamp. It costs {c} dollars. {name} saves {p} dollars every week and has {b} dollars now.
  How many weeks does {name} need?
- The price of a toy is {c} dollars. How many weeks does {name} have to save {p} dollars, if {name} has {b}
  dollars?
- {name} already has {b} dollars and saves {p} dollars a week. A bike costs {c} dollars. After how many
  weeks can {name} buy it?
- A lamp costs {c} dollars. {name} has {b} dollars now and saves {p} dollars every week. How many weeks does
  {name} have to save?

[ages]
- {name} is {a} years old. {other} is {b} years older than {name}. How old will {other} be in {n} years?
- {other} is {b} years older than {name}. {name} is {a} years old now. How old will {other} be after {n}
  years?
- {name} is {a}, and {other} is {b} years older. In {n} years, how old will {other} be?
- How old will {other} be in {n} years, if {name} is {a} years old now and {other} is {b} years older?
- {name} is {a} years old, which is {b} years younger than {other}. How old will {other} be in {n} years?
- The age of {name} is {a} years. {other} is {b} years older than {name}. What will the age of {other} be in
  {n} years?
- {name} is {b} years younger than {other}. {name} is {a} years old. What will the age of {other} be after
  {n} years?
- Today {name} is {a} years old and {other} is {b} years older. What is the age of {other} after {n} more
  years?
- {name} is {a} years old today, and {other} is {b} years older. How old will {other} be after {n} more
  years?
- Today {other} is {b} years older than {name}, and {name} is {a} years old. How old will {other} be in {n}
  years?
- {name} is {a} years old. In {n} years, what will the age of {other} be, if {other} is {b} years older than
  {name}?
- What will the age of {other} be in {n} years, if {other} is {b} years older than {name} and {name} is {a}
  years old now?
- {other} is {b} years older than {name}, who is {a} years old now. How old will {other} be after {n} years?
- {name} is {a} years old now, and {other} is {b} years older than {name}. What will the age of {other} be
  in {n} years?
- {other} is {b} years older than {name}. Today {name} is {a} years old. In {n} years, how old will {other}
  be?

[pages]
- {name} reads a book with {c} pages. {name} reads {a} pages a day for {n} days. How many pages are left?
- A book has {c} pages. Each day {name} reads {a} pages. How many pages are left after {n} days?
- {name} reads {a} pages every day. The book has {c} pages. How many pages remain after {n} days?
- How many pages of a book with {c} pages are left, if {name} reads {a} pages a day for {n} days?
- For {n} days {name} reads {a} pages each day. The book has {c} pages. How many pages does {name} still
  have to read?
- There are {c} pages in the book of {name}. After {n} days with {a} pages each day, how many pages remain?
- {name} has to read {c} pages and reads {a} pages every day. How many pages does {name} still have to read
  after {n} days?
- In {n} days {name} reads {a} pages each day of a book with {c} pages. How many pages of the book remain?
- In a book of {c} pages {name} reads {a} pages each day. After {n} days, how many pages are left?
- For {n} days {name} reads {a} pages a day of a book with {c} pages. How many pages remain?
- {name} reads {a} pages a day for {n} days. The book of {name} has {c} pages. How many pages are left?
- Each day {name} reads {a} pages. There are {c} pages in the book. How many pages are left after {n} days?
- After {n} days with {a} pages a day, how many pages of a book with {c} pages does {name} still have to
  read?
- A book has {c} pages. {name} reads {a} pages every day for {n} days. How many pages does {name} still have
  to read?
- For {n} days {name} reads {a} pages a day. There are {c} pages in the book. How many pages are left?

[legs]
- A {thing} has {p} legs and a {another} has {q} legs. {name} sees {a} {things} and {b} {others}. How many
  legs are there in total?
- {name} sees {a} {things} with {p} legs each and {b} {others} with {q} legs each. How many legs does {name}
  see?
- {name} has {a} {things} and {b} {others}. Each {thing} has {p} legs and each {another} has {q} legs. How
  many legs do they have in all?
- How many legs do {a} {things} and {b} {others} have together, if a {thing} has {p} legs and a {another}
  has {q} legs?
- On a farm {name} counts {a} {things} and {b} {others}. Every {thing} has {p} legs, every {another} has {q}
  legs. What is the total number of legs?
- Each {thing} has {p} legs and each {another} has {q} legs. There are {a} {things} and {b} {others} on the
  farm of {name}. How many legs are there?
- {a} {things} with {p} legs each and {b} {others} with {q} legs each live on the farm of {name}. How many
  legs do they have together?
- {name} counts the legs of {a} {things} and {b} {others}. A {thing} has {p} legs, and a {another} has {q}
  legs. How many legs are there?
- There are {a} {things} with {p} legs each and {b} {others} with {q} legs each. How many legs does {name}
  see?
- {name} counts {a} {things}. Each {thing} has {p} legs. Then {name} counts {b} {others} with {q} legs each.
  How many legs are there in all?
- On the farm of {name} are {b} {others} and {a} {things}. A {thing} has {p} legs and a {another} has {q}
  legs. How many legs do they have?
- {name} has {a} {things} with {p} legs each and {b} {others} with {q} legs each. What is the total number
  of legs?
- How many legs are there, if {name} counts {a} {things} with {p} legs and {b} {others} with {q} legs?
- On a farm {name} sees {a} {things} and {b} {others}. Each {thing} has {p} legs and each {another} has {q}
  legs. How many legs are there in total?
- {name} counts {a} {things} with {p} legs each and {b} {others} with {q} legs each. How many legs do they
  have in all?
""")
