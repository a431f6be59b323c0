"""The page of `pelton advise --html` in a browser: a chart and a table of all devices, names as they are."""


def test_every_device_is_in_the_chart_and_the_table(show):
    page = show("advice", ready=False)
    names = page.locator("table tr td:first-child").all_text_contents()
    assert len(set(names)) > 5 and len(names) == 2 * len(set(names)) and "<b>card</b>" in names
    assert page.locator("table b").count() == 0
    marks = page.locator("svg .device")
    assert marks.count() == len(names)
    box = page.locator("svg").bounding_box()
    for mark in marks.locator("circle").all():
        at = mark.bounding_box()
        assert box["x"] <= at["x"] and at["x"] + at["width"] <= box["x"] + box["width"]
        assert box["y"] <= at["y"] and at["y"] + at["height"] <= box["y"] + box["height"]
    titles = marks.locator("title").all_text_contents()
    assert all("inputs/s predicted, roof quoted" in title for title in titles)
