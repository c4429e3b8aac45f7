"""The one sentence that may stand before a call: announcements, in words that are known, and nothing else."""

from __future__ import annotations

import re

import pytest

from detent.ports.lead_ins import LONGEST, before_calls, doubt_about, leads_in


def words(text: str) -> list[str]:
    """Return the words of a text."""
    return text.split()


NAMES, CALL = ("search_notes",), '{"query": "Paris"}'

ACTS = words("call use run make send execute invoke start issue do try perform")
ACTING = words("calling using running making sending executing invoking starting issuing trying performing")
LOOKS = words("look check search query fetch get find see read list open compute calculate add retrieve load know consult browse")
LOOKING = words(
    "looking checking searching querying fetching getting finding reading listing opening computing calculating adding retrieving loading"
)
OPENINGS = [
    "I will", "I'll", "I\u2019ll", "I'm going to", "I am going to", "I shall", "I need to", "I have to", "I want to", "I'd like to", "I would like to", "I",
    "We will", "We'll", "Let me", "Let us", "Let's",
]  # fmt: skip
NOW = words("now first just then also next quickly")
SMALL = words("the this that it these them a an my our one for up with in on at to into and now first next again")
WHENCE, SHOWN = words("of from by"), words("your you following below")
THINGS = words(
    "file files page pages site web website internet folder directory document database table code weather price prices date time name names number numbers "
    "value values list details data information info facts figure figures result results source sources today current latest sum total "
    "note notes calendar map area population country city temperature order orders customer user account balance status"
)
CALLS = words("call calls action actions step steps request command invocation query json answer")
WHICH = words("the my a final next first second tool function json api action required necessary requested actual")
YES = [
    "Sure",
    "OK",
    "Okay",
    "Alright",
    "All right",
    "Certainly",
    "Of course",
    "Great",
    "Right",
    "Yes",
    "Got it",
    "Understood",
    "Absolutely",
    "Well",
]
FIRST = ["First", "First of all", "Firstly", "Second", "Secondly", "Third", "Next", "Now", "Then", "So", "Therefore", "Finally"]
HERE = [
    "Here", "Here's", "Here is", "Here are the calls", "Here it is", "Here you go", "Here we go", "Here is the call for you", "Here is the call for this",
    "Here is the call for that", "Here is the call for it", "Here is the call you need", "Here is the call I need", "Here is the call I make",
    "Here is the call now", "Here is the call below",
]  # fmt: skip
ABROAD = [
    *(f"Ich {verb} jetzt das Werkzeug" for verb in ("rufe", "nutze", "verwende", "benutze")), *(f"Jetzt {verb} ich" for verb in ("rufe", "nutze", "verwende")),
    *(f"Ich rufe {word}" for word in ("jetzt", "nun", "zuerst", "dazu", "dafür", "das", "die", "den", "werkzeug", "tool", "Funktion", "auf", "search_notes")),
    "Hier ist der Aufruf", "Nächster Aufruf", "Werkzeugaufruf", "Funktionsaufruf", "J'appelle l'outil", "J'utilise l'outil", "Je vais appeler la fonction",
    *(f"Je vais utiliser {word}" for word in ("maintenant", "d'abord", "l'outil", "la", "le", "fonction", "outil", "search_notes")), "Voici l'appel", "Appel",
    "Ahora llamo a la herramienta", "Primero uso la función", "Voy a llamar", "Voy a usar",
    *(f"Llamo {w}" for w in ("ahora", "a", "la", "el", "herramienta", "función")),
    "Aquí está la llamada", "Llamada",
    *(f"现在我{w}调用这个工具" for w in ("现在", "先", "来", "将", "会", "要", "需要")), *(f"我{w}" for w in ("调用", "使用", "查询", "搜索", "读取", "执行")),
    "好的，调用一下该函数",  # noqa: RUF001
]  # fmt: skip
ANNOUNCE = [
    *(f"{opening} call the tool" for opening in OPENINGS), *(f"Let me {verb} this tool" for verb in ACTS), *(f"{verb} the tool" for verb in ACTING),
    *(f"I'm now {verb} that" for verb in ACTING), *(f"Let me {verb} it" for verb in LOOKS), *(f"{verb} the file" for verb in LOOKING),
    *(f"I'll {word} check" for word in NOW), *(f"Let me check {word}" for word in (*SMALL, *WHENCE, *THINGS)),
    *(f"Let me call {word}" for word in (*SMALL, *WHENCE, *SHOWN, *CALLS, "tools", "function", "functions")),
    *(f"Checking {word}" for word in (*SMALL, *THINGS)), "We call the tool", "I now use it",
    *(f"{word}, let me check" for word in YES), *(f"{word}! Let me check" for word in YES), *(f"{word}, let me check" for word in FIRST),
    *YES, *FIRST, *HERE, *(f"{word} call" for word in WHICH), *(f"Here is {word} call" for word in WHICH), *CALLS, "Tool call", "Next step 2", "Action now",
    "FINAL ANSWER", "Final answer", "**Action**", "*Action", "_Action", " Action",
    "To answer, I call the tool", "In order to find the price, let me search", "To use it, I'll call the tool",
    "Let me search_notes", "I will search notes", "I'll call `search_notes`", "Searching search_notes", "Let me check the weather in Paris", *ABROAD,
]  # fmt: skip
NEGATIVE = words(
    "no not never none nothing nobody neither nor cannot without unless instead except rather against unable impossible cancelled canceled avoid refuse "
    "decline reject forbidden forbade prohibited prevent ignore skip deny denied denies denying nicht kein nie niemals nein ohne weder statt verboten "
    "abgelehnt niet geen nooit zonder inte ikke aldrig ne pas jamais aucun rien sans non ni nunca jamás jamas ningún ninguna nada tampoco sin mai senza "
    "nessuno não nao nem sem nenhum bez не нет никогда нельзя без don't won't can\u2019t n'exécutez 不 没 沒 別 别 勿 未 無 无 非 莫 ないで ません 않 안_ 말_"
)


def test_every_announcement_leads_in() -> None:
    """Every opening and every word that may be used, with either colon, whatever the case."""
    for sentence in dict.fromkeys(ANNOUNCE):
        assert leads_in(f"{sentence}:", NAMES, CALL) and leads_in(f"{sentence.upper()} \uff1a", NAMES, CALL.upper()), sentence
        assert not leads_in(sentence, NAMES, CALL) and not leads_in(f"{sentence}.", NAMES, CALL), sentence


@pytest.mark.parametrize(
    "sentence",
    [
        "", ":", "Tool:", "Function:", "The last call:", "Listing the tools:",
        "The page says:", "For example:", "An example of a call:", "You could call:", "Call the tool:", "Run this:", "Output:", "Response:",
        "I called the tool:", "I found this:", "I would call:", "I could call:", "I might call:", "I should call:", "I must call:", "If you agree, I call:",
        "Here is what the page says:", "Here is the call from the page:", "Here is the call that they want:", "This is the call:",
        "I will refrain from calling:", "I'll leave this call out:", "I want to omit this one:", "Let me block this call:", "I need to hold back:",
        "Let me delete this call from the plan:", "I will hardly run this:", "I am going to veto the call:", "I will do the opposite of this:",
        "Let me undo this call:", "We will leave it to others to run:", "Let me pass on the page's call:", "I will call it off:", "Let me get rid of it:",
        "Let me look at this call:", "Let me check the call:", "I will read this request:", "Let me check the weather in Rome:",
        "I see on the page:", "I read in the document:", "I get from the website:", "I see this:", "We find in the notes:", "I know of:", "I list the files:",
        "Reading from the page:", "Listing of the page:", "Getting by number:", "Let me read you the content:", "Let me see the page text:",
        *(f"Let me check {word}:" for word in SHOWN), *(f"Checking {word}:" for word in (*WHENCE, *SHOWN)),
        "Running this deletes everything:", "Calling this would be wrong:", "Ich werde diesen Aufruf unterlassen:", "Je vais éviter cet appel :",
        "Voy a evitar esta llamada:", "我拒绝调用：", "页面上写着：",  # noqa: RUF001
        "Let me check. It is a call:", "Let me check:\nand call:", "Let me\ncheck:", 'Let me check "it":', "Let me check 'it':", "Let me check ‘it’:",  # noqa: RUF001
        "Let me check «it»:", "Let me check „it“:", "Let me check 「it」:", "> Let me check:",
        "# Let me check:", "| Let me check:", "~~Let me check~~:", "<b>Let me check:",
        "<!-- Let me check:", "Should I check?:", "¿Let me check:", "Let me check; it:",
        "`Let me check:", "Let me check `it now`:", "Let me check " + "it " * 100 + ":",
    ],
)  # fmt: skip
def test_anything_else_does_not_lead_in(sentence: str) -> None:
    """What tells, supposes, orders, quotes, or does something to a call; what holds a word that is not known."""
    assert not leads_in(sentence, NAMES, CALL)


def test_words_are_set_apart() -> None:
    """Two that are written as one are another word."""
    for sentence in dict.fromkeys(ANNOUNCE):
        for place in [found.start() for found in re.finditer(r"(?<=[A-Za-z]) (?=[A-Za-z])", sentence)]:
            assert not leads_in(f"{sentence[:place]}{sentence[place + 1 :]}:", NAMES, CALL), (sentence, place)


def test_a_negation_is_found_in_any_words() -> None:
    """Also where the word could be one of the call: a name of the tool makes no exception."""
    for word in [word.replace("_", " ") for word in NEGATIVE]:
        assert "negation" in doubt_about(f"Let me {word} call it:") and "negation" in doubt_about(f"LET ME {word.upper()} CALL"), word
        assert not leads_in(f"Let me {word.strip()} call it:", (word.strip(),), word), word


def test_what_is_doubtful_is_said_in_words() -> None:
    """The first of a question, a quotation and a negation."""
    assert doubt_about('Do not say "it"?') == "there is a question beside it"
    assert doubt_about('Do not say "it"') == "there is a quotation mark or other markup beside it"
    assert doubt_about("Do not say `it` or **that**") == "there is a negation beside it"
    assert (
        "markup" in doubt_about("Say ``it") and doubt_about("Say `it` or **that**") == "" and "markup" in doubt_about("Say `it or **that**")
    )


@pytest.mark.parametrize(
    "said",
    [
        *(f"He wrote {mark}call it" for mark in "\"“”„‟«»‹›「」『』《》'‘’‚"),  # noqa: RUF001
        *(f"call it{mark} he wrote" for mark in "'‘’"),  # noqa: RUF001
        "> call it", "He wrote:\n > call it", "# call it", "| call it", "He wrote <b>call it", "call it</b>", "He wrote <!-- call it", "~~call it",
    ],
)  # fmt: skip
def test_half_a_quotation_is_one(said: str) -> None:
    """A thought may open it, and the call be what is quoted."""
    assert doubt_about(said) == "there is a quotation mark or other markup beside it"


@pytest.mark.parametrize("word", ["note", "know", "now", "notes", "nearby", "single", "paste", "Nonna", "denim"])
def test_a_word_that_only_begins_like_a_negation_is_none(word: str) -> None:
    """A whole word counts."""
    assert doubt_about(f"Let me {word} it:") == ""


def test_names_and_words_of_the_call_may_be_used_where_they_are_names() -> None:
    """A number and a capitalised word that stand in the call; other words of its arguments say nothing about the sentence."""
    assert leads_in("I will transfer 100 to Bob:", ("transfer",), '{"to": "Bob", "amount": 100}')
    assert not leads_in("I will transfer 100 to Eve:", ("transfer",), '{"to": "Bob", "amount": 100}')
    assert not leads_in("I will refrain from it:", ("send",), '{"body": "refrain from it"}')
    assert not leads_in("I will transfer it:", ("send",), "{}")
    assert leads_in("Let me frobnicate that gizmo:", ("frobnicate-gizmo",)) and not leads_in(
        "Let me frobnicate that gizmo:", ("frobnicategizmo",)
    )
    assert leads_in("Let me get_it:", ("get_it",)) and not leads_in("Let me get_it:", ("get",))
    for names in ((), ("_x",)):
        assert leads_in("To answer, let me check:", names) and not leads_in("To answer , let me check:", names)


def test_a_lead_in_is_made_of_whole_words() -> None:
    """However it is marked, and whatever stands before its colon."""
    for said in (
        "*Let me check:*",
        "_Let me check:_",
        "Let me check :",
        "Sure:",
        "Sure,let me check:",
        "All right, let me check:",
        "Got it:",
    ):
        assert leads_in(said, NAMES), said
    for said in (
        "Oklet me check:",
        "Nowlet me check:",
        "Allright, let me check:",
        "Gotit, let me check:",
        "Letme check:",
        "Let menow check:",
        "Iwill check:",
    ):
        assert not leads_in(said, NAMES), said
    assert leads_in("I will transfer 5 to B:", ("transfer",), '{"to": "B", "amount": 5}')
    assert not leads_in("Let me r it:", ("read",)) and leads_in("Let me use read and re:", ("read", "re"))


def test_a_lead_in_has_at_most_240_characters() -> None:
    """With its colon."""
    assert leads_in("Let me check" + " it" * 75 + " a:", NAMES) and not leads_in("Let me check" + " it" * 74 + " the a:", NAMES)


def test_a_call_may_begin_after_each_colon_of_the_first_line() -> None:
    """And at the start; not after a bracket, and not after a page of words."""
    assert before_calls("a: b:\n\n c: {d: 1}") == [0, 3, 8, 11]
    assert before_calls("**Action:** {a: 1}") == [0, 12] and before_calls(": a:b") == [0, 2, 4]
    assert before_calls("a {b: 1}") == [0] and before_calls("`a`: x") == [0, 5] and before_calls("```a: x") == [0]
    assert before_calls("x" * (LONGEST + 1) + ": y: z")[2:] == []
    assert before_calls("x" * (LONGEST - 1) + ":y: z") == [0, LONGEST] and len(before_calls("x" * (LONGEST - 2) + ":y: z")) == 3
