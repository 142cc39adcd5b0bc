"""The list of every text that users can read is whole, and none of them asks for a person where it means a thing."""

from __future__ import annotations

from tests import texts


def test_texts_are_found_with_their_kind() -> None:
    source = '''
@cli.command()
@click.option("--all", help="All of them.")
def show(name):
    """Show one gang."""
    click.echo(f"gang {name} waits")
    raise BadInput("there is no such gang" + why)
def inner():
    """Only a docstring of ours."""
    recorder.event(obj, "Warning", "Lost", f"node {node} is gone")
    log.info("%s starts", name)
    words = "two words"
    return f"waits for {', '.join(names)} and nothing else"
'''
    assert set(texts.of_module(source)) == {
        ("help", "Show one gang."),
        ("help", "All of them."),
        ("prints", "gang … waits"),
        ("error", "there is no such gang"),
        ("event", "node … is gone"),
        ("text", "waits for … and nothing else"),
    }


def test_the_list_of_texts_is_up_to_date() -> None:
    listed, found = texts.LIST.read_text(encoding="utf-8").splitlines(), texts.texts()
    missing, left = sorted(set(found) - set(listed)), sorted(set(listed) - set(found))
    assert listed == found, f"run: {texts.COMMAND}\nnot listed: {missing}\nno longer in the source: {left}"


def test_no_text_has_a_forbidden_word() -> None:
    """The subject of a text is a gang, a queue, a node: something that users know, never somebody."""
    assert [text for text in texts.texts() if texts.FORBIDDEN.search(text)] == []
    assert texts.FORBIDDEN.search("make it anew") and texts.FORBIDDEN.search("Nobody knows it")
    assert not texts.FORBIDDEN.search("a gang whose pods wait for the whole")
