"""The names of made-up customers, funds and bookings."""

from __future__ import annotations


def _words(text: str) -> list[str]:
    """The words; an underscore stands for a space within one."""
    return [word.replace("_", " ") for word in text.split()]


FIRST = _words("""
    Ada Aisha Akira Amélie Anna Ben Carlos Chloé Daan Diego Elif Emma Erik Fatima Finn Giulia Hanna
    Hugo Ines Ivan Jakub Jana Jonas Katarzyna Lars Lea Leon Lucía Luca Maja Marie Mateo Mia Milan
    Noah Nora Olga Oskar Paula Pierre Sara Sofia Søren Theo Tomás Viktor Yara Zoë
""")
LAST = _words("""
    Andersson Bauer Bernard Bianchi Costa Dubois Fernández Fischer García Hansen Hoffmann Horváth
    Janssen Jensen Kaya Keller Kowalski Lindberg López Martin Meyer Moreau Müller Nielsen Novák
    Nowak O'Brien Okafor Peeters Petit Popescu Ricci Rossi Santos Schmidt Schneider Silva Šimić
    Tanaka Virtanen Visser Wagner Weber Yılmaz de_Vries van_den_Berg von_Ahn Öztürk
""")
STREETS = _words("""
    Bahnhofstraße Calle_Mayor Grote_Markt High_Street Rue_de_la_Gare Storgatan Via_Garibaldi
""")
COUNTRIES = _words("AT BE CZ DE DK ES FI FR IE IT NL PL PT RO SE")
FUND_HOUSES = _words("Alster Boreal Cassia Delft Elbe Fjord Garda Helvetia")
FUND_KINDS = _words("Bonds Europe_Equity Green_Energy Real_Estate World_Index")
INCOME = _words("Salary Transfer Refund Interest")
EXPENSES = _words("Rent Card_payment Insurance Cash Energy Savings_plan")
